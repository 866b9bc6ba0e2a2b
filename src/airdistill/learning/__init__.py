"""Models, class means, local training and evaluation; independent of privacy and radio."""
