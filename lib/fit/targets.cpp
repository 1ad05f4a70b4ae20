// SPDX-License-Identifier: MIT
#include "fit/targets.hpp"

#include <algorithm>
#include <cctype>

#include "base/text.hpp"

namespace oscar {

const std::vector<Target>& targets() {
  static const std::vector<Target> kTargets{
      {.name = "sglang-v1", .lloyd_max = true},
      {.name = "sglang-v3", .linear = true, .per_head = true, .mean = true, .key_clips = true, .lloyd_max = true},
      {.name = "llamacpp"},
      {.name = "any",
       .linear = true,
       .per_head = true,
       .mean = true,
       .key_clips = true,
       .value_clips = true,
       .lloyd_max = true}};
  return kTargets;
}

namespace {

/// Which target is meant by the name of a server or a library, in the words of an error.
std::string target_of_server(std::string server) {
  std::erase_if(server, [](char c) { return c == '.' || c == '-' || c == '_'; });
  std::ranges::transform(server, server.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (server == "vllm" || server == "transformers" || server == "hf" || server == "huggingface") {
    return "vLLM and transformers read sets of every target by oscar's Python package, so give --target any";
  }
  if (server.starts_with("sglang")) {
    return "SGLang with OSCAR's patches reads --target sglang-v1, newer trees of it sglang-v3";
  }
  if (server.starts_with("llama") || server == "gguf" || server == "ollama") return "llama.cpp reads --target llamacpp";
  return "";
}

}  // namespace

const Target& target_from_name(const std::string& name) {
  std::vector<std::string> names;
  for (const Target& target : targets()) {
    if (target.name == name) return target;
    names.push_back(target.name);
  }
  throw unknown_choice(name, "--target", names, target_of_server(name));
}

}  // namespace oscar
