"""What is open, and every change to it: the document, its edits and what they would cost."""
