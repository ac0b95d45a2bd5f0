#!/usr/bin/env python3
"""Writes what the checks of IFEval's instructions are compared with: the verdicts of `lm_eval`.

    pip install --no-deps --target PACKAGES lm_eval langdetect nltk immutabledict six regex packaging
    PYTHONPATH=PACKAGES ifeval.py OUT

OUT is `crates/recipes/tests/data/ifeval.json`. It gets a list of answers, and for each instruction a letter for each
answer: `y` if the package says that it is kept to. Nothing of the package but its task is imported. Two things cannot be
had without a download and are left out or replaced: sentences, which the package counts by a model of punctuation
(`punkt`), and the same model before words are counted that are capital, where each answer is one sentence.
"""
import importlib.metadata
import json
import pathlib
import sys
import types

import langdetect
import nltk

ROOT = next(path for path in map(pathlib.Path, sys.path) if (path / "lm_eval/tasks/ifeval").is_dir())
for name in ("lm_eval", "lm_eval.tasks", "lm_eval.tasks.ifeval"):
    module = types.ModuleType(name)
    module.__path__ = [str(ROOT.joinpath(*name.split(".")))]
    sys.modules[name] = module
nltk.data.find = lambda *_: "no download"
words = nltk.tokenize.NLTKWordTokenizer()
nltk.word_tokenize = words.tokenize

from lm_eval.tasks.ifeval import utils  # noqa: E402

langdetect.DetectorFactory.seed = 0

ANSWERS = [
    "", " \n ", "yes", "Yes.", "My answer is yes.", "I say: My answer is no. Fine?", "my answer is maybe.",
    "The sky is blue and the sea is deep", "sky", "skyline and seaside", "Sea, SKY, sea.", "category", "The cat.", "cats and a Cat!",
    "Quite a question, Q.", "qqq", "one two three", "it's one-two", "a_b c 1,000", "naïve café über", "日本 語", "x" * 60 + " y",
    "a\n***\nb", "***\na\n***\nb\n***", "a ***\n\n***\nb", "a\n\nb", "a\n\n\n\nb", "a\n***\nb\n***\nc", "a\n****\nb",
    "First\n\nThen, it is.\n\nLast", "\"Then\" we go\n\nthen", "A\n\n'Then' b", "A\n\nThen.b c", "\n\nThen\n\nB", "A\n\n  then ok",
    "A\n\nB\n\nThen", "A\n\n...\n\nB", "Then\nB", "[name] lives in [street]", "[name", "[a\nb] [c]", "[[x]] []", "][", "[a](b) [c]",
    "x\nP.S. y", "x\nP.P.S y", "p. s. ok", "p.p.s. ok", "P. P. S now", "PS: no", "see p.s", "x P.P.S. y p.s.",
    "* a\n* b\n", "* a\n* b\n- c", "- a\n - b\n\t* c", "** a\n**b**", "*a*\n*b*", "-\n*\n", "a - b", "*\n\n* a", "1. a\n2. b", "--- \n- a",
    "*a* and **b**", "**a** b", "*a b", "* a * b * c *", "****", "**a*", "*a\nb*", "**a** **b**", "***a***", "_a_ *b*", "*a**b*", "** a **",
    "SECTION 1\na\nSECTION 2\nb", "SECTION 1 and the SECTION", "Section 1 Section2 Section\n3", "SECTION one", "SUBSECTION 12", "SECTION\n\n4 SECTION 5",
    "```json\n{\"a\": 1}\n```", "{\"a\": 1}", "{a: 1}", "```\n[1, 2]\n```", "```json{}```", "``````json\n{}\n```", "{\"a\": NaN}", "\"a\"",
    "```Json\n1\n```", "{\"a\": 1} x", "[1,]", "```json\n{}\n``````", "Infinity", "{\"a\": 1, \"a\": 2}", "\"tab\there\"",
    "<<poem of joy>>\nx", "<<>>", "<< >>", "<<a\nb>>", "<<<a>>>", "<a>", "x <<t>> y", "<< <> >>", "<<a>", ">>a<<", "<<a>>>>",
    "a\n******\nb", "a\n******\na", "******\na\n******\nb", "a******b******", "a ****** b ****** c", "a\n************\nb", "******", "a\n*******\nb",
    "Say hi\nHi", "say HI", " Say hi there", "Hi. Say hi", "So. the end.", "The end. Or not", "\"The end.\"", "the end.\n", "The end!", "end.",
    "THIS IS ALL CAPITAL LETTERS AND A SENTENCE IN ENGLISH.", "HI 2", "Hi", "ALL CAPS BUT one", "123", "THIS IS AN ENGLISH TEXT WITH I'M AND USA-BASED WORDS",
    "this is a sentence in plain english without any capital letters.", "hi 2", "das ist ein ganz normaler satz in deutscher sprache",
    "DAS IST EIN GANZ NORMALER SATZ IN DEUTSCHER SPRACHE", "A BIG dog", "a BIG dog", "I AM, OK? U.S.A. IT'S A-B X2 2X", "NASA's (USA) \"EU\" and/OR", "É À Ñ",
    "a b", "a, b", "a، b", "\"a\"", "\"a", "\"", "\"\"", " \"a b\" ", "“a”", "'a'", "\"a\" and \"b\"",
    "keep it. Sky? SEA!", "a.b axb a+b", "a b, A B a  b", "aba ababa",
]

CASES = [
    ("keywords:existence", {"keywords": ["Sky", "sea"]}), ("keywords:existence", {"keywords": ["cat"]}),
    ("keywords:frequency", {"keyword": "a b", "frequency": 2, "relation": "at least"}),
    ("keywords:frequency", {"keyword": "sea", "frequency": 1, "relation": "less than"}),
    ("keywords:frequency", {"keyword": " aba ", "frequency": 2, "relation": "at least"}),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}), ("keywords:forbidden_words", {"forbidden_words": ["sea", "the end"]}),
    ("keywords:letter_frequency", {"letter": "q", "let_frequency": 2, "let_relation": "less than"}),
    ("keywords:letter_frequency", {"letter": "E", "let_frequency": 3, "let_relation": "at least"}),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 1}), ("length_constraints:number_paragraphs", {"num_paragraphs": 2}),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}),
    ("length_constraints:number_words", {"num_words": 4, "relation": "at least"}),
    ("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"}),
    ("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 3, "nth_paragraph": 2, "first_word": "then"}),
    ("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 1, "first_word": "a"}),
    ("detectable_content:number_placeholders", {"num_placeholders": 1}), ("detectable_content:number_placeholders", {"num_placeholders": 2}),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}), ("detectable_content:postscript", {"postscript_marker": "P.P.S"}),
    ("detectable_format:number_bullet_lists", {"num_bullets": 1}), ("detectable_format:number_bullet_lists", {"num_bullets": 2}),
    ("detectable_format:number_bullet_lists", {"num_bullets": 3}), ("detectable_format:constrained_response", {}),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 3}),
    ("detectable_format:multiple_sections", {"section_spliter": "SECTION", "num_sections": 1}),
    ("detectable_format:multiple_sections", {"section_spliter": "SECTION", "num_sections": 2}),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 3}),
    ("detectable_format:json_format", {}), ("detectable_format:title", {}), ("combination:two_responses", {}),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say hi"}), ("startend:end_checker", {"end_phrase": "The end."}),
    ("startend:end_checker", {"end_phrase": " Yes. "}),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"}),
    ("change_case:capital_word_frequency", {"capital_frequency": 1, "capital_relation": "less than"}),
    ("change_case:capital_word_frequency", {"capital_frequency": 5, "capital_relation": "at least"}),
    ("change_case:english_capital", {}), ("change_case:english_lowercase", {}), ("punctuation:no_comma", {}), ("startend:quotation", {}),
]


def verdict(id, kwargs, answer):
    example = utils.InputExample(key=0, instruction_id_list=[id], prompt="Say hi", kwargs=[kwargs])
    return "y" if utils.test_instruction_following_strict(example, answer).follow_all_instructions else "n"


def main():
    cases = [{"id": id, "kwargs": kwargs, "followed": "".join(verdict(id, dict(kwargs), answer) for answer in ANSWERS)}
             for id, kwargs in CASES]
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    version = importlib.metadata.version("lm_eval")
    answers = ",\n".join(json.dumps(answer, ensure_ascii=False) for answer in ANSWERS)
    text = f'{{"package": "lm_eval {version}",\n"answers": [\n{answers}\n],\n"cases": [\n{lines}\n]}}\n'
    pathlib.Path(sys.argv[1]).write_text(text)


if __name__ == "__main__":
    main()
