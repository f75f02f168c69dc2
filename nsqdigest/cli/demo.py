"""`nsqdigest demo`: the whole of it on this machine, with servers of its own."""

from __future__ import annotations

import sys

import click

from nsqdigest.base.errors import EXIT_NO

LONGEST_S = 24 * 3600


@click.command("demo", short_help="See all of it at work on this machine.")
@click.option(
    "--seconds",
    type=click.IntRange(0, LONGEST_S),
    default=30,
    envvar="DEMO_SECONDS",
    show_envvar=True,
    show_default=True,
    help="About how long; 0: until Ctrl-C.",
)
def command(seconds: int) -> None:
    """See all of it at work, with nothing but a Redis on this machine.

    Starts a small nsqd, a Redis and a webhook of its own, publishes what goes wrong in a shop, shows the digests that
    come of it, stops Redis on the way, and looks for each event at the receiver. It leaves nothing behind.

    Exit code 0: nothing was lost; 1: something was, or it was ended too early to say.

    \b
    Example:
      nsqdigest demo --seconds 60
    """
    from nsqdigest.demo.narrator import Narrator
    from nsqdigest.demo.servers.redis import find_redis

    find_redis()  # without one nothing is promised
    narrator = Narrator(sys.stdout)
    narrator.opening(seconds)  # before the rest is imported: there is something to read at once

    from nsqdigest.base import resolver
    from nsqdigest.demo.play import Play

    try:
        nothing_lost = resolver.run(Play(seconds, narrator).run())
    finally:
        narrator.close()
    sys.exit(0 if nothing_lost else EXIT_NO)
