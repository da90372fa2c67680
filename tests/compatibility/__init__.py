"""What an earlier version wrote loads, resumes and answers as it did there.

    db463f6/            what that commit wrote; never changed, and never written to by a test
      models/           saved models of every task and family
      runs/             run directories that were killed half-way, with SIGKILL
      prepared/         a corpus; preparing/: one that was killed half-way; vectors/: likewise
      settings/         each recipe as `pretrain` writes it to settings.yaml
      commands.json     the command line of each run; words.json: a word of each setting
      options.txt       the names on the command line; api.txt: those in Python; calls.json
      expected/         what came of the runs where they were left alone, and what the models answer
      conditions.json   the processor and the libraries that they were made with
    make.py             made all that, at the commit

What is moved in `src/` is followed in `schemas.py` alone. A setting that is renamed gets a line in
`schemas.RENAMED`, an option or a name in `test_names.py`; the tests then see that the former one is
still accepted, with a line that says it is deprecated.
"""
