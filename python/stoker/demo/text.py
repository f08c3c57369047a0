"""Invented conversations: enough variety for a tokenizer to work on, no meaning worth learning."""

from __future__ import annotations

from random import Random

__all__ = ["answer", "comparison", "follow_up", "question", "request", "system_prompt"]

_QUESTIONS = (
    "What is the main subject of this picture?",
    "Describe what you see, then say what surprises you.",
    "Is anything in the picture moving? How can you tell?",
    "Which colours dominate, and where?",
    "How many separate objects can you count in the foreground?",
    "Where was this taken, as far as one can tell?",
    "What would you have to know to take this photograph again?",
    "Write a caption of one line for a newspaper.",
    "Is the light natural or artificial?",
    "Return the answer as JSON with the keys `subject`, `colours` and `n_objects`.",
)
_FOLLOW_UPS = (
    "And what is behind it?",
    "Are you sure? Look at the lower left corner again.",
    "Say the same for a child of six.",
    "Now in French, please.",
    "Which detail made you say so?",
    "Shorten that to ten words.",
    "What is not visible but must be there?",
    "Give me three other titles.",
)
_REQUESTS = (
    "Explain why the sea looks blue although a glass of water does not.",
    "I have 3 hours and 40 minutes between two trains. Plan a walk through an old town.",
    "Write a function that returns the second largest of a list, and test it.",
    "What is the difference between weather and climate? Use numbers.",
    "Translate into German: the lamp stood where the road bends.",
    "Summarise the rules of chess for someone who knows draughts.",
    "My bread does not rise. What did I do wrong?",
    "How does a lens bend light, and why are some lenses thick?",
)
_SUBJECTS = (
    "the photograph", "the scene", "the left half", "the light", "the background", "the lower edge", "the surface",
    "the shadow", "the centre", "the texture", "a narrow band at the top", "the whole frame", "the focus",
)  # fmt: skip
_VERBS = (
    "shows", "suggests", "hides", "repeats", "contrasts with", "leads to", "is broken by", "rests on", "frames",
    "draws the eye to", "almost touches", "mirrors",
)  # fmt: skip
_OBJECTS = (
    "a warm, uneven glow", "fine grain", "two diagonal lines", "the subject", "deep red and orange tones",
    "an empty corner", "several small points of light", "a soft edge", "wood, metal and cloth", "a bright reflection",
    "nothing that one could name", "the horizon at about 2/3 of the height", "a shape of roughly 120 x 80 pixels",
)  # fmt: skip
_TAILS = (
    "", "", "", ", which is easy to miss", ", at least at this size", ", as one would expect at dusk",
    " (compare the upper right)", "; measured across, it is about 14 %", ", so the picture was probably cropped",
    " – that is, if the colours are true",
)  # fmt: skip
_SYSTEM = (
    "You are a careful assistant who describes pictures exactly.",
    "Answer briefly. If you do not know, say so.",
    "You help an archive to label its photographs.",
)


def _sentence(rng: Random) -> str:
    words = f"{rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} {rng.choice(_OBJECTS)}{rng.choice(_TAILS)}."
    return words[0].upper() + words[1:]


def answer(rng: Random, subject: str, *, n_sentences: int) -> str:
    """Returns an answer about a picture (or about ``subject``), now and then as a list."""
    sentences = [_sentence(rng) for _ in range(n_sentences)]
    opening = rng.choice((f"This is {subject}.", f"One sees {subject}.", f"It shows {subject}."))
    if n_sentences > 3 and rng.random() < 0.25:
        return opening + "\n\n" + "\n".join(f"{i}. {sentence}" for i, sentence in enumerate(sentences, 1))
    return " ".join((opening, *sentences))


def question(rng: Random) -> str:
    """Returns a question about one picture."""
    return rng.choice(_QUESTIONS)


def follow_up(rng: Random) -> str:
    """Returns what one asks next."""
    return rng.choice(_FOLLOW_UPS)


def comparison(rng: Random, n_pictures: int) -> str:
    """Returns a question about several pictures."""
    return rng.choice(
        (
            f"These are {n_pictures} pictures. Which one does not belong, and why?",
            "Compare them: light, colours, distance to the subject.",
            f"Put the {n_pictures} in the order in which you would print them.",
        )
    )


def request(rng: Random) -> str:
    """Returns a question that needs no picture."""
    return rng.choice(_REQUESTS)


def system_prompt(rng: Random) -> str:
    """Returns a system message."""
    return rng.choice(_SYSTEM)
