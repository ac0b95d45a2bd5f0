"""Somebody behind the same proxy as everybody guesses keys, and claims a new address each time."""

TITLE = "a guesser behind the proxy; then another person logs in"
FORM = {"content-type": "application/x-www-form-urlencoded", "x-api-key": ""}


def attack(target):
    server = target.serve("--public-url", "https://train.example.org")
    api = server.api()

    def log_in(key, address):
        return api.send("POST", "/login", f"key={key}".encode(), {**FORM, "x-forwarded-for": address})[0]

    guesses = [log_in("sk-guess", f"10.0.0.{number}, 198.51.100.7") for number in range(12)]
    slowed = guesses.count(429)
    person = log_in("tml-person", "198.51.100.8")
    return f"{slowed} of {len(guesses)} guesses were held off; the other person: {person}", slowed > 0 and person == 303
