"""The lab: experiments that test claims about BERT; and BERT's ancestors, trained like BERT.

    claim (a quotation, an experiment, a rule) ─► ordinary runs, with several seeds ─► a verdict

`claims` has the rule, and `bench` the data and runs of experiments. `counting`, `looking`,
`learning` and `pretraining` declare the claims: the first need no training, the last the most.
"""
