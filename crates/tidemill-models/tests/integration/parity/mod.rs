//! Parity with the installed diffusers and transformers. One Python process (`make_cases.py`) draws
//! configurations, weights and inputs from a seed, and writes them with the libraries' results to a
//! temporary folder. The tests load the same folders and compare.

mod cases;
mod compare;
mod exports;
mod networks;
mod samplers;
mod schedules;
mod towers;
mod training;
mod variants;
