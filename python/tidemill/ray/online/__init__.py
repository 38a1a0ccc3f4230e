"""Online training on Ray: a pool of encoder actors feeds the trainers, and nothing is stored."""
