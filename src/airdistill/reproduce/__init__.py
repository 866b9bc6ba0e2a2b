"""The paper's figures computed anew, and its claims checked against them."""
