"""What sentence vectors are trained for: one file per loss, found by name (`loss.vector_losses`)."""
