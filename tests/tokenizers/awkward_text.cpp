#include "tokenizers/awkward_text.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "base/text/utf8.h"

namespace lockstep::test {

namespace {

using Texts = std::vector<std::string>;
using Ranges = std::vector<std::pair<char32_t, char32_t>>;
using Make = std::function<std::string()>;

const Texts kWords = {
    "the",
    "The",
    "and",
    "of",
    "training",
    "Distributed",
    "hello",
    "WORLD",
    "don't",
    "we'LL",
    "it's",
    "I'm",
    "they've",
    "caf\xc3\xa9",
    "na\xc3\xafve",
    "Stra\xc3\x9f"
    "e",
    "\xc4\xb0stanbul",
    "\xc3\x85ngstr\xc3\xb6m",
    "\xce\xa3\xce\x8a\xce\xa3\xce\xa5\xce\xa6\xce\x9f\xce\xa3",
    "\xc7\x85ungla",
    "\xef\xac\x81ne",
    "x86_64",
    "v1.2.3",
    "3.14159",
    "1,000",
    "U+0041",
    "unaffable",
    "antidisestablishmentarianism",
    "#tag",
    "@you",
    "a_b-c$1.5",
    "http://example.org/?q=1&r=2",
    "\xe4\xb8\xad\xe6\x96\x87",
    "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\xe3\x83\x86\xe3\x82\xad\xe3\x82\xb9\xe3\x83\x88",
    "\xed\x95\x9c\xea\xb5\xad\xec\x96\xb4",
    "\xd1\x80\xd1\x83\xd1\x81\xd1\x81\xd0\xba\xd0\xb8\xd0\xb9",
    "\xe0\xa4\xb9\xe0\xa4\xbf\xe0\xa4\xa8\xe0\xa5\x8d\xe0\xa4\xa6\xe0\xa5\x80",
    "\xe0\xb9\x84\xe0\xb8\x97\xe0\xb8\xa2",
    "\xd7\xa2\xd7\x91\xd7\xa8\xd7\x99\xd7\xaa",
    "\xd8\xa7\xd9\x84\xd8\xb9\xd8\xb1\xd8\xa8\xd9\x8a\xd8\xa9"};
const Texts kSpecials = {"[MASK]", "[CLS]",    "[SEP]",         "[UNK]",       "[PAD]",   "[mask]",
                         "[MASK",  "MASK]",    "<|endoftext|>", "<|endoftext", "##ing",   "<s>",
                         "</s>",   "##",       "[unused1]",     "newword",     "NewWord", "@@",
                         "<mask>", "\xc3\xa9", "e\xcc\x81"};
const Texts kEmoji = {"\xf0\x9f\x98\x80",
                      "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x94\xac",
                      "\xf0\x9f\x8f\xb3\xef\xb8\x8f\xe2\x80\x8d\xf0\x9f\x8c\x88",
                      "\xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd",
                      "\xf0\x9f\x87\xb0\xf0\x9f\x87\xb7",
                      "1\xef\xb8\x8f\xe2\x83\xa3",
                      "\xe2\x9d\xa4\xef\xb8\x8f",
                      "\xf0\x9f\xa7\x91\xf0\x9f\x8f\xbf\xe2\x80\x8d\xf0\x9f\xa4\x9d\xe2\x80\x8d\xf0"
                      "\x9f\xa7\x91\xf0\x9f\x8f\xbb",
                      "\xf0\x9f\xab\xa8",
                      "\xe2\x98\xba"};
const Texts kSpaces = {" ",
                       "  ",
                       "\x09",
                       "\x0a",
                       "\x0d\x0a",
                       "\x0a\x0a",
                       "\xc2\xa0",
                       "\xe3\x80\x80",
                       "\xe2\x80\x83",
                       "\xe2\x80\xa8",
                       "\xe2\x80\xa9",
                       "\xc2\x85",
                       "\x0b",
                       "\x0c",
                       "\x1c",
                       "\xe1\x9a\x80",
                       "\xe2\x80\xaf",
                       "\xe2\x81\x9f",
                       "\xe2\x80\x8b",
                       "\xef\xbb\xbf",
                       "\xe1\xa0\x8e",
                       " \x09 ",
                       "    "};
const Texts kJunk = {"\xed\xa0\x80",
                     "\xed\xbf\xbf",
                     "\xc0\x80",
                     "\xc1\xbf",
                     "\xe0\x80\x80",
                     "\xe0\x9f\xbf",
                     "\xf0\x8f\xbf\xbf",
                     "\xf4\x90\x80\x80",
                     "\xf5\x80\x80\x80",
                     "\xff",
                     "\xfe",
                     "\x80",
                     "\xbf",
                     "\xe4\xb8",
                     "\xf0\x9f\x98",
                     "\xc3",
                     "\xe2\x82",
                     "\xf0\x9f",
                     "\xed\xa0\xbd\xed\xb8\x80",
                     "\xef\xbf\xbd"};
const Ranges kMarks = {{0x300, 0x36f},   {0x591, 0x5bd},     {0x610, 0x61a},   {0x64b, 0x65f},
                       {0x93c, 0x94d},   {0x9be, 0x9cd},     {0xe31, 0xe3a},   {0xf71, 0xf7e},
                       {0x1dc0, 0x1dff}, {0x20d0, 0x20f0},   {0x302a, 0x302f}, {0x3099, 0x309a},
                       {0xfe20, 0xfe2f}, {0x1d165, 0x1d172}, {0x1ab0, 0x1ac0}, {0x16ff0, 0x16ff1},
                       {0x338, 0x338},   {0x345, 0x345}};
const Ranges kBases = {{0x41, 0x5a},     {0x61, 0x7a},     {0xc0, 0x17f},    {0x386, 0x3ce},
                       {0x1ea0, 0x1ef9}, {0x1f00, 0x1ffe}, {0x30, 0x39},     {0x3c, 0x3e},
                       {0x410, 0x44f},   {0x4e00, 0x4e20}, {0x304b, 0x30db}, {0xac00, 0xac40},
                       {0x1100, 0x1112}, {0x1161, 0x1175}};
const Ranges kChinese = {
    {0x4e00, 0x9fff},   {0x3400, 0x4dbf}, {0xf900, 0xfaff}, {0x20000, 0x2a6df}, {0x2a700, 0x2ceaf},
    {0x2f800, 0x2fa1f}, {0x3000, 0x303f}, {0x3040, 0x30ff}, {0xff00, 0xffef},   {0x2e80, 0x2fdf}};
const Ranges kHangul = {{0xac00, 0xd7a3}, {0xac00, 0xd7a3}, {0x1100, 0x11ff},
                        {0x3130, 0x318f}, {0xa960, 0xa97f}, {0xd7b0, 0xd7ff}};
const Ranges kRightToLeft = {
    {0x590, 0x5ff},   {0x600, 0x6ff},   {0x700, 0x7ff},   {0x8a0, 0x8ff},     {0xfb1d, 0xfdff},
    {0xfe70, 0xfeff}, {0x200e, 0x200f}, {0x202a, 0x202e}, {0x10e80, 0x10ebf}, {0x1e900, 0x1e95f}};
const Ranges kControls = {{0x0, 0x1f},        {0x7f, 0x9f},       {0xad, 0xad},
                          {0x200b, 0x200f},   {0x2028, 0x202e},   {0x2060, 0x206f},
                          {0xfeff, 0xfeff},   {0xfff9, 0xfffd},   {0xe000, 0xe010},
                          {0xe0001, 0xe007f}, {0x110bd, 0x110bd}, {0x61, 0x64}};
const Ranges kDigits = {{0x30, 0x39},     {0x660, 0x669},     {0x966, 0x96f},   {0xb2, 0xb3},
                        {0x2160, 0x2188}, {0x2460, 0x249b},   {0xff10, 0xff19}, {0x1d7ce, 0x1d7ff},
                        {0x3007, 0x3007}, {0x16ea0, 0x16ed3}, {0x27, 0x27},     {0x61, 0x7a},
                        {0x20, 0x20}};

std::string utf8(char32_t point) {
  std::string text;
  base::append_utf8(text, point);
  return text;
}

const std::string& one_of(TextDice& dice, const Texts& texts) {
  return texts[dice.below(texts.size())];
}

std::string point_in(TextDice& dice, const Ranges& ranges) {
  const auto [first, last] = ranges[dice.below(ranges.size())];
  return utf8(first + static_cast<char32_t>(dice.below(last - first + 1)));
}

std::string any_point(TextDice& dice) {
  const auto point = static_cast<char32_t>(dice.below(0x110000 - 0x800));
  return utf8(point < 0xD800 ? point : point + 0x800);
}

std::string some(TextDice& dice, uint64_t most, const Make& make) {
  std::string text;
  for (uint64_t left = 1 + dice.below(most); left > 0; --left) {
    text += make();
  }
  return text;
}

// `first`, then `second`: the order in which operands of + are made is the compiler's choice.
std::string then(std::string first, const Make& second) {
  return std::move(first) + second();
}

std::string spaced(TextDice& dice, uint64_t most, const Make& make) {
  return some(dice, most, [&] {
    return then(make(), [&] { return dice.below(4) == 0 ? one_of(dice, kSpaces) : " "; });
  });
}

std::string marked(TextDice& dice) {
  return then(point_in(dice, kBases), [&] {
    return dice.below(3) != 0 ? some(dice, 4, [&] { return point_in(dice, kMarks); }) : "";
  });
}

std::string mutated(TextDice& dice) {
  std::string text = spaced(dice, 6, [&] { return one_of(dice, kWords); });
  for (uint64_t left = 1 + dice.below(4); left > 0; --left) {
    const uint64_t at = dice.below(text.size());
    text[at] = static_cast<char>(dice.below(256));
  }
  return text;
}

std::string block(TextDice& dice) {
  auto page = static_cast<char32_t>(dice.below(0x110000 / 64));
  page = page * 64 >= 0xD800 && page * 64 < 0xE000 ? 4 : page;
  return some(dice, 12, [&] {
    return then(utf8(page * 64 + static_cast<char32_t>(dice.below(64))),
                [&] { return dice.below(3) == 0 ? "a" : ""; });
  });
}

std::string long_word(TextDice& dice) {
  const std::string letters = some(dice, 3, [&] { return point_in(dice, kBases); });
  std::string text;
  for (int i = 0; i < 150; ++i) {
    text += letters;
  }
  text.resize(std::min<size_t>(text.size(), 2 * (90 + dice.below(30))));
  text += one_of(dice, kSpaces);
  text.append(95 + dice.below(10), 'x');
  return text;
}

std::string special(TextDice& dice) {
  std::string text = one_of(dice, kSpecials);
  text += dice.below(2) != 0 ? one_of(dice, kSpaces) : "";
  text += dice.below(2) != 0 ? one_of(dice, kWords) : "";
  return text;
}

std::string junk(TextDice& dice) {
  std::string text = one_of(dice, kJunk);
  text += dice.below(2) != 0 ? one_of(dice, kWords) : "";
  return text;
}

std::string words_and_spaces(TextDice& dice) {
  return then(one_of(dice, kWords),
              [&] { return some(dice, 3, [&] { return one_of(dice, kSpaces); }); });
}

std::string text_of_kind(TextDice& dice, uint64_t kind) {
  switch (kind) {
    case 0:
      return spaced(dice, 12, [&] { return one_of(dice, kWords); });
    case 1:
      return some(dice, 24, [&] { return any_point(dice); });
    case 2:
      return block(dice);
    case 3:
      return some(dice, 20, [&] {
        return dice.below(3) != 0 ? point_in(dice, kChinese) : one_of(dice, kWords);
      });
    case 4:
      return some(dice, 20, [&] { return point_in(dice, kHangul); });
    case 5:
      return some(dice, 12, [&] { return marked(dice); });
    case 6:
      return some(dice, 20, [&] { return point_in(dice, kRightToLeft); });
    case 7:
      return some(dice, 8, [&] { return one_of(dice, dice.below(3) != 0 ? kEmoji : kWords); });
    case 8:
      return some(dice, 20, [&] { return point_in(dice, kControls); });
    case 9:
      return some(dice, 10, [&] { return words_and_spaces(dice); });
    case 10:
      return some(dice, 8, [&] { return special(dice); });
    case 11:
      return long_word(dice);
    case 12:
      return some(dice, 30, [&] { return std::string(1, static_cast<char>(dice.below(256))); });
    case 13:
      return mutated(dice);
    case 14:
      return some(dice, 8, [&] { return junk(dice); });
    default:
      return some(dice, 24, [&] { return point_in(dice, kDigits); });
  }
}

}  // namespace

uint64_t TextDice::below(uint64_t limit) {
  state_ += 0x9E3779B97F4A7C15u;
  uint64_t z = state_;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return (z ^ z >> 31) % limit;
}

std::string awkward_text(uint64_t index) {
  TextDice dice(index * 0x9E3779B97F4A7C15u + 1);
  return text_of_kind(dice, index % 16);
}

}  // namespace lockstep::test
