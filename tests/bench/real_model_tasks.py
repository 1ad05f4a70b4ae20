# SPDX-License-Identifier: MIT
"""Tasks on long contexts after the definitions of RULER (arXiv 2404.06654), and completion of code, as rows of token ids.

A row ends with its answer, each of whose tokens but the last is to be the model's first choice given all before it. So several
values are asked for in an order that the question tells, where RULER takes them in any. `qa_1` and `qa_2` ask for facts that are
made up, of one and of two steps, in place of SQuAD's and HotpotQA's; haystacks are texts of the domains, in place of essays.
"""
import itertools
import string

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
SYLLABLES = [a + b for a in "bdfgklmnprstv" for b in "aeiou"]
PLACES = ("harbour", "mill", "library", "bakery", "station", "museum", "garden", "theatre", "market", "school", "quarry", "lighthouse")


KINDS = ("single_1", "single_2", "single_3", "multikey_1", "multikey_2", "multikey_3", "multivalue", "multiquery", "variables",
         "common_words", "frequent_words", "qa_1", "qa_2", "code_line")


class Tasks:
    """Each method makes a row of exactly `length` tokens, and the number of tokens of its answer."""

    def __init__(self, encode, begin, text, code, line_ends, words, rng):
        self.encode, self.begin, self.text, self.words, self.rng = encode, begin, text, words, rng
        self.code, self.line_ends = code, line_ends

    # What rows are made of.

    def number(self):
        return "".join(self.rng.choice(string.digits) for _ in range(6))

    def uuid(self):
        return "-".join("".join(self.rng.choice("0123456789abcdef") for _ in range(n)) for n in (8, 4, 4, 4, 12))

    def name(self):
        return "".join(self.rng.sample(SYLLABLES, 3)).capitalize()

    def excerpt(self, length):
        at = self.rng.randrange(len(self.text) - length)
        return self.text[at:at + length]

    def row(self, length, facts, question, answer, filling=None):
        """Facts in their order at random places of a filling (tokens by their number; None: of the text), none in its last part."""
        facts, question, answer = [self.encode(fact) for fact in facts], self.encode(question), self.encode(answer)
        body = (filling or self.excerpt)(length - 1 - sum(map(len, facts)) - len(question) - len(answer))
        places = sorted(self.rng.randrange(len(body) - min(400, len(body) // 2)) for _ in facts)
        row, last = [self.begin], 0
        for place, fact in zip(places, facts):
            row += body[last:place] + fact
            last = place
        return row + body[last:] + question + answer, len(answer)

    def repeated(self, lines):
        """A filling of whole lines, the last one cut."""
        def fill(length):
            ids = []
            while len(ids) < length:
                ids += self.encode(next(lines))
            return ids[:length]
        return fill

    # Needles in a haystack.

    def needles(self, length, keys, value, values=1, asked=1, filling=None):
        codes = [(key, [value() for _ in range(values)]) for key in keys]
        facts = [f"\nThe secret code for {key} is {code}.\n" for key, each in codes for code in each]
        self.rng.shuffle(facts)
        wanted = self.rng.sample(codes, asked)
        if values > 1:
            key = wanted[0][0]
            found = [fact.rsplit(" ", 1)[1].strip()[:-1] for fact in facts if f" for {key} is " in fact]
            return self.row(length, facts, f"\nQuestion: what are all secret codes for {key}, in the order of the text?\n"
                            f"Answer: the secret codes for {key} are ", ", ".join(found) + ".", filling)
        if asked > 1:
            listed = ", ".join(key for key, _ in wanted)
            return self.row(length, facts, f"\nQuestion: what are the secret codes for {listed}?\nAnswer: the secret codes for {listed} are ",
                            ", ".join(code for _, (code,) in wanted) + ".", filling)
        (key, (code,)), = wanted
        return self.row(length, facts, f"\nQuestion: what is the secret code for {key}?\nAnswer: the secret code for {key} is ", f"{code}.", filling)

    def keys(self, count):
        return self.rng.sample(self.words, count)

    def single_1(self, length):
        return self.needles(length, self.keys(1), self.number, filling=self.repeated(itertools.repeat(NOISE)))

    def single_2(self, length):
        return self.needles(length, self.keys(1), self.number)

    def single_3(self, length):
        return self.needles(length, self.keys(1), self.uuid)

    def multikey_1(self, length):
        return self.needles(length, self.keys(4), self.number)

    def among_others(self, length, key, value):
        others = (f"\nThe secret code for {key()} is {value()}.\n" for _ in itertools.count())
        return self.needles(length, [key()], value, filling=self.repeated(others))

    def multikey_2(self, length):
        return self.among_others(length, lambda: f"{self.rng.choice(self.words)} {self.name()}", self.number)

    def multikey_3(self, length):
        return self.among_others(length, self.uuid, self.uuid)

    def multivalue(self, length):
        return self.needles(length, self.keys(1), self.number, values=4)

    def multiquery(self, length):
        return self.needles(length, self.keys(4), self.number, asked=4)

    # Chains, counts and questions.

    def variables(self, length):
        """One chain of four steps beside another one; all names of the first are asked for."""
        chains = [["".join(self.rng.choice(string.ascii_uppercase) for _ in range(5)) for _ in range(5)] for _ in range(2)]
        values = [self.number()[:5] for _ in chains]
        lines = [[f"\nVAR {chain[0]} = {value}\n", *(f"\nVAR {b} = VAR {a}\n" for a, b in itertools.pairwise(chain))]
                 for chain, value in zip(chains, values)]
        facts = [fact for pair in zip(*lines) for fact in pair]
        return self.row(length, facts, f"\nQuestion: which variables have the value {values[0]}, in the order of the text?\n"
                        f"Answer: the variables are {chains[0][0]}, ", ", ".join(chains[0][1:]) + ".")

    def counted(self, length, weights, question, asked):
        """A list of made-up words, of which the first `asked` come more often than all others."""
        words = list(dict.fromkeys(self.name() for _ in range(len(weights) + 8)))[:len(weights)]
        drawn = (f"{self.rng.choices(words, weights)[0]}, " for _ in itertools.count())
        return self.row(length, [], question, ", ".join(words[:asked]) + ".", self.repeated(drawn))

    def common_words(self, length):
        """Three words of which each comes twice as often as the next one, and all others a quarter as often as the last."""
        return self.counted(length, [16, 8, 4] + [1] * 60, "\nQuestion: which three words of the list above are the most common, the most "
                            "common one first?\nAnswer: the three words are ", 3)

    def frequent_words(self, length):
        """Frequencies fall as by Zipf's law with the exponent 2."""
        return self.counted(length, [(i + 1) ** -2.0 for i in range(60)], "\nQuestion: which word of the list above comes most often?\n"
                            "Answer: the word is ", 1)

    def people(self, facts_of):
        return self.repeated("\n" + " ".join(facts_of(self.name())) + "\n" for _ in itertools.count())

    def qa_1(self, length):
        facts = lambda name: [f"{name} was born in {self.name()} and works at the {self.rng.choice(PLACES)}.", f"{name} collects {self.rng.choice(self.words)}."]
        who, town = self.name(), self.name()
        return self.row(length, [f"\n{who} was born in {town} and works at the {self.rng.choice(PLACES)}.\n"], f"\nQuestion: where was {who} born?\n"
                        f"Answer: {who} was born in", f" {town}.", self.people(facts))

    def qa_2(self, length):
        facts = lambda name: [f"{name} was born in {self.name()}.", f"The best friend of {name} is {self.name()}."]
        who, friend, town = self.name(), self.name(), self.name()
        return self.row(length, [f"\nThe best friend of {who} is {friend}.\n", f"\n{friend} was born in {town}.\n"],
                        f"\nQuestion: where was the best friend of {who} born?\nAnswer: the best friend of {who} is {friend}, who was born in",
                        f" {town}.", self.people(facts))

    def code_line(self, length):
        """A line of eight to thirty tokens of a module, given all before it in the context."""
        ends = [i for i, token in enumerate(self.code) if token in self.line_ends]
        begin, end = self.rng.choice([(a + 1, b + 1) for a, b in itertools.pairwise(ends) if 8 <= b - a <= 30 and b + 1 >= length])
        return [self.begin] + self.code[end - length + 1:end], end - begin
