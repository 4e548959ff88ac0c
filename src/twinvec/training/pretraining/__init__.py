"""Learning from bare text: each task hides part of a text and asks for it back."""
