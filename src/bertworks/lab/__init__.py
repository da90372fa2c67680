"""The lab: what is said of BERT, tried here; and its ancestors, trained like it.

    claim (a quotation, an experiment, a rule) ─► ordinary runs, with several seeds ─► a verdict

`claims` has the rule and `bench` what experiments are made with; `counting`, `looking`, `learning`
and `pretraining` declare the claims, from those that need no training to those that need most.
"""
