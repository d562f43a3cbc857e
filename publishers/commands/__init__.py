"""The subcommands of `sluice` that the publishers contribute; each module has one click `command`."""
