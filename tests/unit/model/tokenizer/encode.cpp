// SPDX-License-Identifier: MIT
// encode TOKENIZER TEXTS.json [ENOUGH]: prints {"prefix": ids before every text, "ids": those of each text of a JSON
// list, or why a text is refused}.
#include <cstdio>
#include <limits>
#include <string>

#include "base/errors.hpp"
#include "base/json.hpp"
#include "model/tokenizer/tokenizer.hpp"

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) return 2;
  try {
    const oscar::Tokenizer tokenizer(argv[1]);
    const std::size_t enough = argc > 3 ? std::stoul(argv[3]) : std::numeric_limits<std::size_t>::max();
    oscar::Json all = {{"prefix", tokenizer.prefix()}, {"ids", oscar::Json::array()}};
    for (const oscar::Json& text : oscar::read_json(argv[2])) {
      try {
        all["ids"].push_back(tokenizer.encode(text.get<std::string>(), "", enough));
      } catch (const oscar::DataError& error) {
        all["ids"].push_back(error.what());
      }
    }
    std::puts(all.dump().c_str());
  } catch (const oscar::Error& error) {
    std::printf("%s | %s\n", error.what(), error.where().c_str());
    return 1;
  }
  return 0;
}
