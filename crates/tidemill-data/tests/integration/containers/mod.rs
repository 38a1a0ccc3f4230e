//! Every container through the public interface: the same pairs give the same rows whatever holds
//! them, and a broken container gives a row or an error that names the problem.

mod helpers;
mod pairs;
mod records;
