// SPDX-License-Identifier: MIT
// encode TOKENIZER.json TEXTS.json: prints the ids of each text of a JSON list, as one list of lists.
#include <cstdio>

#include "base/errors.hpp"
#include "base/json.hpp"
#include "model/tokenizer/tokenizer.hpp"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const oscar::Tokenizer tokenizer(argv[1]);
    oscar::Json all = oscar::Json::array();
    for (const oscar::Json& text : oscar::read_json(argv[2]))
      all.push_back(tokenizer.encode(text.get<std::string>(), ""));
    std::puts(all.dump().c_str());
  } catch (const oscar::Error& error) {
    std::printf("%s | %s\n", error.what(), error.where().c_str());
    return 1;
  }
  return 0;
}
