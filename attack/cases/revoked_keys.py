"""A line of `revoked-keys` is damaged. The key that it was must not be admitted again."""

TITLE = "a damaged line in `revoked-keys`"


def attack(target):
    target.serve().kill()
    path = target.path("data") / "revoked-keys"
    path.write_text("owner-0123456789abcdeg\n")
    again = target.serve()
    log = again.log()
    named = "revoked-keys" in log and "line 1" in log
    return ("started" if again.is_listening else "refused, line named" if named else "refused"), not again.is_listening and named
