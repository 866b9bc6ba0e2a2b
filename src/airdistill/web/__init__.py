"""The page in the browser: plan, watch, compare. A front door; what it shows is computed elsewhere."""
