"""The commands, each importing what it needs when it runs: ``show`` costs no web stack."""
