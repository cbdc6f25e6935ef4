"""The learner: log-probs, objectives, checkpoint schedules and the training step."""
