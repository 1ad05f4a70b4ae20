# SPDX-License-Identifier: MIT
"""A server with the part of OpenAI's completions interface that `oscar serve-check` uses, over a model of transformers:
greedy continuations of token ids with log-probabilities, one request at a time. make_cache() gives each its KV cache."""
import json
import sys
import threading
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "zoo"))
from peers import Handler, Serving


class CompletionsServer(Serving):
    """A context manager that gives itself; `change(answer)` may spoil answers for tests of errors."""

    def __init__(self, model, make_cache, name="sample", token=lambda i: f"token_id:{i}", change=lambda answer: answer):
        self.model, self.make_cache, self.name, self.token, self.change = model, make_cache, name, token, change
        self.requests, self.keys, self.status, outer, one_at_a_time = [], set(), 200, self, threading.Lock()

        class Answers(Handler):
            def do_GET(self):
                self.answer({"object": "list", "data": [{"id": outer.name, "object": "model"}]})

            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with one_at_a_time:
                    outer.requests.append((self.path, request))
                    found = outer.complete(request)
                self.answer(found)

            def answer(self, document):
                document = outer.change(document)
                outer.keys.add(self.headers["Authorization"])
                self.reply(outer.status, document if isinstance(document, bytes) else json.dumps(document).encode())

        super().__init__(Answers)

    def __enter__(self):
        super().__enter__()
        return self

    @torch.no_grad()
    def complete(self, request):
        cache, step = self.make_cache(), torch.tensor([request["prompt"]])
        tokens, chosen, tops = [], [], []
        for _ in range(request["max_tokens"]):
            logs = self.model(step, past_key_values=cache).logits[0].float().log_softmax(-1)
            if request.get("echo") and not tokens:
                tokens, chosen, tops = [self.token(request["prompt"][0])], [None], [None]
                for token, row in zip(request["prompt"][1:], logs[:-1]):
                    tokens.append(self.token(token))
                    chosen.append(float(row[token]))
                    tops.append(self.listed(row, request))
            step = logs[-1].argmax()[None, None]
            tokens.append(self.token(int(step)))
            chosen.append(float(logs[-1].max()))
            tops.append(self.listed(logs[-1], request))
        return {"object": "text_completion", "model": self.name,
                "choices": [{"index": 0, "text": "", "finish_reason": "length",
                             "logprobs": {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": tops}}]}

    def listed(self, logs, request):
        values, ids = logs.topk(request["logprobs"])
        return {self.token(int(i)): float(value) for i, value in zip(ids, values)}
