"""The pages of the documentation, and the diagrams in them that are printed from the code (`python -m lifecycle.docs`)."""
