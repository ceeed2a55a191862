"""One module for each figure, table or study."""
