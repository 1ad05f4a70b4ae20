# SPDX-License-Identifier: MIT
"""A server whose answers follow rules in place of a model: it writes stretches of a text, quotes what it is asked to, and has one bad
habit, or none. Any log-probabilities will do for it."""
import random

from completions_server import CompletionsServer

CUE = 12


class WritingServer(CompletionsServer):
    """text: token ids; decode: their text; habit: a name below; start: where in the text it writes from, so that two servers differ."""

    def __init__(self, text, decode, habit="", start=0, **options):
        super().__init__(None, None, **options)
        self.text, self.decode, self.habit, self.start = text, decode, habit, start

    def stretch(self, seed, count):
        at = (self.start + 977 * seed) % (len(self.text) - count)
        return self.text[at:at + count]

    def spoilt(self, tokens, seed):
        if self.habit == "garbled":
            draw = random.Random(seed)
            return [draw.randrange(300, 2000) if draw.random() < 0.3 else token for token in tokens]
        return (tokens[:20] * len(tokens))[:len(tokens)] if self.habit == "repeating" else tokens

    def complete(self, request):
        return self.reply(request) if "messages" in request else self.go_on(request)

    def reply(self, request):
        seed = request["seed"]
        count = min(request["max_tokens"], 30 + 7 * (seed % 5))
        count = count // 3 if self.habit == "shortened" else count
        silent = self.habit == "silent" and seed % 3 == 0
        cut = self.habit == "cut off" and seed % 3 == 0
        content = None if silent else self.decode(self.spoilt(self.stretch(seed, count), seed))
        return {"object": "chat.completion", "usage": {"completion_tokens": count},
                "choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": "length" if cut else "stop"}]}

    def go_on(self, request):
        prompt, count = request["prompt"], request["max_tokens"]
        tokens = self.quote(prompt, count) or self.spoilt(self.stretch(100 + request.get("seed", 0), count), 1)
        shown = prompt + tokens if request.get("echo") else tokens
        return {"object": "text_completion", "choices": [{"text": self.decode(tokens), "logprobs": {
            "tokens": [f"token_id:{token}" for token in shown], "token_logprobs": [-0.1] * len(shown),
            "top_logprobs": [{f"token_id:{token}": -0.1, f"token_id:{(token + 1) % 2048}": -3.0} for token in shown]}}]}

    def quote(self, prompt, count):
        """What followed the last tokens of the prompt when they stood in it first."""
        cue = prompt[-CUE:]
        for at in range(len(prompt) - 2 * CUE):
            if prompt[at:at + CUE] == cue:
                found = prompt[at + CUE:at + CUE + count]
                return found[:10] + [found[9]] * (count - 10) if self.habit == "forgetful" else found
        return []
