"""A campaign of faults: runs that are killed, files that are damaged, calls that make no sense.

`python -m benchmarks chaos` runs it for as long as it is told and counts what was tried and what did not hold:

- *lost*: a run that cannot be brought to its end, or ends with less than one that nobody disturbed;
- *wrong*: other bytes, or numbers of damaged files that pass for whole ones;
- *traceback*: an error that is neither documented nor said in a sentence;
- *hang*: what does not end.

Every trial is made from the campaign's seed and its own number alone, so that it can be repeated:
`--trial damage:120 --seed 7`. The moment at which a process dies is as near the same as a clock allows.
"""
