"""Runners of the queue: for each verb, how rows are tokenised and a batch is computed.

Rows of one runner share batches, also rows of different clients. Settings that only affect how a
text is tokenised, or which part of the result is kept, belong to the row and not to the runner.
"""
