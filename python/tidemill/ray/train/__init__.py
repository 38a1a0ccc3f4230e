"""Training on Ray Train: the trainer, its workers, failure policy and graceful stop."""
