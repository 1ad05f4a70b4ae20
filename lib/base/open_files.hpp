// SPDX-License-Identifier: MIT
#pragma once

namespace oscar {

/// Room for `count` open files at a time, as far as the process may have so many. Where a process with several threads
/// outgrows its table of open files, Linux waits for all processors (10 to 30 ms) before it goes on, and every thread
/// that opens a file waits too: better done once, while others have something to do.
void make_room_for_files(int count);

}  // namespace oscar
