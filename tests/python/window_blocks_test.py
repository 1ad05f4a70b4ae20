# SPDX-License-Identifier: MIT
"""Which tokens have copies in windows, against a server that remembers every token: window_blocks_test.py [WindowsTest.test_…]

On a GPU if OSCAR_TEST_DEVICE=cuda, exit status 77 if there is none.
"""
import random
import sys
import unittest

try:
    import torch
    import oscar_kv
    from on_device import DEVICE
    from oscar_kv.window_blocks import MOST_NEW, DecodeTables, WindowBlocks, WindowStep
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

PACKED = 1000000  # added to a token's number where a copy was restored from packed rows


class Server:
    """Blocks, requests that share prefixes, and copies, of which each token is a number of its own."""

    def __init__(self, seed, block=8, sink=4, recent=13, requests=4, tokens=24, blocks=60, counts=(1, 1, 1, 5, 17)):
        self.random, self.block, self.sink, self.recent = random.Random(seed), block, sink, recent
        self.requests, self.budget, self.counts = requests, tokens, counts
        self.windows = WindowBlocks(blocks, block, sink, recent, requests, tokens, torch.device(DEVICE))
        self.cache, self.positions = torch.full((2, blocks * block), -1)
        self.copies = torch.full((self.windows.entries * block,), -1)
        self.free, self.next_number = list(range(blocks)), 0
        self.running, self.ended = [], []  # [table, tokens so far]
        self.restored, self.former, self.steady_steps = 0, set(), 0
        self.by_kernels, self.kernel_steps = False, 0

    def start(self):
        table, seen = [], 0
        if self.ended and self.random.random() < 0.6:  # a prefix of whole blocks that the cache still has
            former = self.random.choice(self.ended + self.running)
            shared = self.random.randint(0, former[1] // self.block)
            table, seen = former[0][:shared], shared * self.block
            self.free = [block for block in self.free if block not in table]
            if self.free and seen < former[1] and self.random.random() < 0.3:  # and a part of the next, whose rows are copied
                own, seen = self.free.pop(), min(self.random.randint(seen, former[1]), seen + self.block - 1)
                for each in (self.cache, self.positions):
                    self.of_block(own, each).copy_(self.of_block(former[0][shared], each).clone())
                self.windows.forget([own])
                table, self.ended = [*table, own], [each for each in self.ended if own not in each[0]]
        self.running.append([table, seen])

    def of_block(self, block, of_slots):
        return of_slots[block * self.block:][:self.block]

    def step(self):
        if len(self.running) < self.requests and self.random.random() < 0.5:
            self.start()
        if self.running and self.random.random() < 0.15:  # ends, or is preempted
            ended = self.running.pop(self.random.randrange(len(self.running)))
            self.free += [block for block in ended[0] if all(block not in table for table, _ in self.running)]
            self.ended.append(ended)
        budget, batch = self.budget, []
        for request in self.random.sample(self.running, len(self.running)):
            count = min(self.random.choice(self.counts), budget)
            need = -(-(request[1] + count) // self.block) - len(request[0])
            if not count or need > len(self.free):
                continue
            for _ in range(need):
                request[0].append(self.free.pop(self.random.randrange(len(self.free))))
                self.ended = [each for each in self.ended if request[0][-1] not in each[0]]
            batch.append((request, count))
            budget -= count
        return batch

    def run(self, test, batch):
        if not batch:
            return
        width = max(len(request[0]) for request, _ in batch) + 1
        table = torch.tensor([request[0] + [0] * (width - len(request[0])) for request, _ in batch], dtype=torch.int32)
        before = torch.tensor([request[1] for request, _ in batch])
        after = before + torch.tensor([count for _, count in batch])
        _, token, written = self.windows.places(table, before, after - before)
        names = frozenset(id(request) for request, _ in batch)
        self.steady_steps += names <= self.former
        self.former = names
        step = self.step_by_kernels(test, table, before, after, written, names) or self.windows.begin(table, before, after, written, names, False)
        numbers = torch.arange(self.next_number, self.next_number + len(written))
        self.next_number += len(written)
        test.assertEqual(self.positions[step.restored[0]].tolist(), step.restored[2].tolist())
        self.cache[written], self.positions[written] = numbers, token
        has_copy = step.kept >= 0
        self.copies[step.kept[has_copy]] = numbers[has_copy]
        self.copies[step.restored[1]] = self.cache[step.restored[0]] + PACKED
        self.restored += len(step.restored[0])
        self.check_rows_before(test, table, before)
        for request, count in batch:
            request[1] += count

    def step_by_kernels(self, test, table, before, after, written, names):
        """A step in which requests have one new token each, or three, where kernels take it, and padding."""
        tokens = int((after - before)[0])
        if not self.by_kernels or tokens not in (1, 3) or bool((after - before != tokens).any()) or not self.windows.is_steady(names, False):
            return None
        self.kernel_steps += 1
        rows, counted = len(table), torch.arange(len(table) + 1, dtype=torch.int32) * tokens
        tables = DecodeTables(*(torch.full((rows, *width), 7, dtype=torch.int32) for width in (
            (self.windows.page_width(table),), (), (self.windows.seen_at_once(tokens),), ())))
        slots, kept = torch.full((2, len(written) + 1), 7, dtype=torch.int32)
        padded = torch.cat([written, torch.tensor([-1])])
        self.windows.step(table, counted, after.int(), padded, names, slots, kept, tables)
        want = self.windows.decode_tables(table, before, after - before, tokens)
        for name, found, expected in zip(DecodeTables._fields, tables, want):
            test.assertTrue(torch.equal(found, expected), (name, found, expected))
        test.assertTrue(torch.equal(slots, padded.int()))
        test.assertEqual(int(kept[-1]), -1)
        return WindowStep(kept[:-1].long(), (before[:0],) * 3)

    def check_rows_before(self, test, table, before):
        """They are all tokens before a step, those in windows by copies of theirs."""
        slots, positions, near, copies = self.windows.rows_before(table, before)
        request, token, slot = self.windows.places(table, torch.zeros_like(before), before)
        test.assertEqual(positions.tolist(), [t for seen in before.tolist() for t in range(seen)])
        seen = before[request]
        is_near = (token < self.sink) | (token > seen - max(self.recent, 1))
        test.assertEqual(near.tolist(), is_near.nonzero()[:, 0].tolist())
        test.assertEqual(slots.tolist(), torch.where(is_near, -1, slot).tolist())
        test.assertTrue((copies >= 0).all())
        test.assertTrue((self.copies[copies] % PACKED == self.cache[slot[near]]).all())


class WindowsTest(unittest.TestCase):
    def test_every_token_of_a_window_is_there_whatever_the_server_does(self):
        restored = steady = 0
        for seed, changes in enumerate(({}, {"sink": 0}, {"recent": 1}, {"recent": 8}, {"block": 16}, {"block": 4, "sink": 9},
                                        {"blocks": 24}, {"tokens": 160, "counts": (1, 30, 50)})):
            server = Server(seed, **changes)
            for _ in range(80):
                server.run(self, server.step())
            restored, steady = restored + server.restored, steady + server.steady_steps
        self.assertGreater(restored, 25)  # prefixes whose copies had made room came back
        self.assertGreater(steady, 100)

    def test_steps_by_kernels(self):
        """A sink of whole blocks; few entries, so that they go from one request to another."""
        oscar_kv.load_library()
        steps = steady = 0
        for seed, changes in enumerate(({}, {"sink": 0}, {"recent": 2}, {"block": 16, "sink": 16}, {"blocks": 24}, {"requests": 7, "blocks": 200})):
            server = Server(seed, **{"sink": 8, "counts": (1,), "tokens": 160} | changes)
            server.by_kernels = True
            for number in range(120):
                server.counts = ((1,), (3,), (1,), (1, 9))[number // 5 % 4]
                server.run(self, server.step())
            steps, steady = steps + server.kernel_steps, steady + server.steady_steps
        self.assertGreater(steps, 200)
        self.assertGreater(steady, steps)  # torch took the others

    def test_a_prefix_that_is_shared_keeps_its_exact_copies(self):
        server = Server(0)
        server.running.append([server.free[:4], 0])
        server.run(self, [(server.running[0], 24)])
        server.running.append([server.running[0][0][:3] + [server.free[9]], 24])
        server.run(self, [(server.running[1], 3)])
        self.assertEqual(server.restored, 0)

    def test_a_block_is_restored_whole_for_requests_that_read_more_of_it(self):
        server = Server(0, tokens=160)
        server.running.append([server.free[:6], 0])
        server.run(self, [(server.running[0], 48)])
        for blocks in (4, 3):  # the window of the first begins within the last block of the second
            server.running.append([server.running[0][0][:blocks] + [server.free[9 + blocks]], 8 * blocks])
            server.run(self, [(server.running[-1], 3)])
        self.assertGreater(server.restored, 0)

    def test_a_step_behind_many_rejected_drafts_finds_its_window(self):
        """32 tokens at once, of which 31 are taken back: the recent window of the next step lies before those that have copies."""
        windows, table = WindowBlocks(20, 16, 0, 4, 1, 64, torch.device(DEVICE)), torch.arange(8, dtype=torch.int32)[None]
        for before, after in ((0, 32), (32, 64), (33, 34)):
            seen, end = torch.tensor([before]), torch.tensor([after])
            step = windows.begin(table, seen, end, windows.places(table, seen, end - seen)[2], frozenset({0}), before == 0, after - before > MOST_NEW)
        self.assertIn(32, step.restored[0].tolist())

    def test_requests_without_new_tokens_take_no_part(self):
        windows, table, seen = WindowBlocks(20, 16, 0, 40, 1, 64, torch.device(DEVICE)), torch.arange(8, dtype=torch.int32)[None], torch.tensor([96])
        step = windows.begin(table, seen, seen, torch.zeros(0, dtype=torch.long))
        self.assertEqual(len(step.restored[0]), 0)
        self.assertEqual(int(windows.copies(torch.arange(96)).max()), -1)

    def test_what_is_set_aside_suffices_for_chunks_of_any_length(self):
        """Each request has all its windows at once, at any place in its blocks."""
        for new in (9, 14, 60):
            for before in range(40, 48):
                windows = WindowBlocks(200, 8, 4, 13, 4, 4 * new, torch.device(DEVICE))
                table, zero = torch.arange(80, dtype=torch.int32).reshape(4, 20), torch.zeros(4, dtype=torch.long)
                for seen in (zero, zero + before):
                    count = before if seen is zero else new
                    windows.begin(table, seen, seen + count, windows.places(table, seen, zero + count)[2])
                self.assertLessEqual(windows.entries, 1 + 4 * 5 + 4 * 2)

    def test_more_windows_than_were_set_aside_are_an_error(self):
        windows = WindowBlocks(100, 8, 4, 13, 1, 8, torch.device(DEVICE))
        table, zero = torch.arange(90, dtype=torch.int32).reshape(10, 9), torch.zeros(10, dtype=torch.long)
        written = windows.places(table, zero, zero + 40)[2]
        with self.assertRaisesRegex(RuntimeError, "windows need more than the 7 blocks of 8 tokens"):
            windows.begin(table, zero, zero + 40, written)


if __name__ == "__main__":
    torch.set_default_device(DEVICE)
    unittest.main()
