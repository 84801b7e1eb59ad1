"""Fine-tuning a pre-trained model on labelled files."""
