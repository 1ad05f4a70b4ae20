// SPDX-License-Identifier: MIT
// Questions whose answers take more than a line: what a chat model is asked when its answers' lengths are compared.
#pragma once

#include <array>

namespace oscar::serve {

inline constexpr std::array<const char*, 24> kLongQuestions{
    "Explain to a ten-year-old why the sky is blue and sunsets are red.",
    "A train leaves at 9:40 and travels 210 km at 84 km/h. When does it arrive? Show each step.",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "Write a Python function that merges overlapping intervals, and explain how it works.",
    "What are the main differences between a virus and a bacterium?",
    "List the steps to change a flat tyre safely, in order.",
    "A shop sells pens at 3 for 2 euros. How much do 27 pens cost, and how many pens does one get for 30 euros?",
    "Summarise the causes of the First World War in two paragraphs.",
    "Erkläre in einigen Sätzen, wie eine Wärmepumpe ein Haus heizt.",
    "Explique en quelques phrases pourquoi les marées changent au cours du mois.",
    "Explica en pocas frases cómo se hace el pan con masa madre.",
    "请用几句话解释为什么植物需要阳光。",
    "Write a polite letter to a landlord who has not repaired the heating for two weeks.",
    "Compare bicycles, buses and cars for a daily way to work of eight kilometres.",
    "How many ways are there to choose a team of 3 from 7 people? Explain how you count.",
    "Write a SQL query that finds the three customers with the highest total of orders, and explain it.",
    "What should one consider before adopting a dog?",
    "Describe how a bill becomes law in a parliamentary system.",
    "Give five tips for learning a new language as an adult, with a reason for each.",
    "Explain what a hash table is, how collisions are handled, and when it is slow.",
    "If all bloops are razzies and some razzies are lazzies, must some bloops be lazzies? Explain.",
    "Plan a three-day visit to a city that you know well, for a family with two children.",
    "Why do aeroplanes fly? Correct a common wrong explanation.",
    "Write a poem of twelve lines about the first snow in a city.",
};

}  // namespace oscar::serve
