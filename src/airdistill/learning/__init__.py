"""Models, local knowledge, local training and evaluation. Knows nothing of privacy or radio."""
