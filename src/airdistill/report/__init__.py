"""Tables, figures and pages: the presentation of plans, runs, comparisons, certificates and audits."""
