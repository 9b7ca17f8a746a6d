"""Groups of commands that suggest the nearest command for a mistyped word."""

import click


class SuggestingGroup(click.Group):
    """The base of every group of the command line."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of the arguments. Raises UsageError, with the command that was probably meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from toolkit.suggestions import nearest_name

            suggestion = nearest_name(args[0], self.list_commands(ctx), cutoff=0.6)
            if suggestion is None or "Did you mean" in error.message:
                raise
            raise click.UsageError(f"{error.message} Did you mean {suggestion!r}?", ctx) from error
