#include "storage/xml.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <lockstep/base/error.h>

#include "base/text/utf8.h"

namespace lockstep::storage {

namespace {

constexpr int kMaxDepth = 32;
constexpr std::string_view kXmlSpace = " \t\r\n";

bool is_name_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == ':' || c == '.';
}

class Parser {
 public:
  explicit Parser(std::string_view xml) : xml_(xml) {}

  XmlElement document() {
    if (rest().starts_with("\xef\xbb\xbf")) {
      at_ += 3;
    }
    if (rest().starts_with("<?xml")) {
      skip_past("?>");
    }
    skip_space();
    XmlElement root = element(0);
    skip_space();
    if (at_ != xml_.size()) {
      fail("something follows the last element");
    }
    return root;
  }

 private:
  std::string_view rest() const { return xml_.substr(at_); }

  [[noreturn]] void fail(const char* what) const {
    throw FormatError("not XML: {} at offset {} of {} bytes", what, at_, xml_.size());
  }

  void expect(char c) {
    if (at_ >= xml_.size() || xml_[at_] != c) {
      fail("an unexpected letter");
    }
    ++at_;
  }

  void skip_space() { at_ = std::min(xml_.find_first_not_of(kXmlSpace, at_), xml_.size()); }

  void skip_past(std::string_view end) {
    const size_t found = xml_.find(end, at_);
    if (found == std::string_view::npos) {
      fail("an unfinished tag");
    }
    at_ = found + end.size();
  }

  std::string_view name() {
    const size_t begin = at_;
    while (at_ < xml_.size() && is_name_letter(xml_[at_])) {
      ++at_;
    }
    if (at_ == begin) {
      fail("a tag without a name");
    }
    return xml_.substr(begin, at_ - begin);
  }

  // True if the tag is empty: <name/>.
  bool skip_attributes() {
    for (;;) {
      skip_space();
      if (rest().starts_with("/>")) {
        at_ += 2;
        return true;
      }
      if (rest().starts_with(">")) {
        ++at_;
        return false;
      }
      name();
      skip_space();
      expect('=');
      skip_space();
      const char quote = at_ < xml_.size() ? xml_[at_] : '\0';
      if (quote != '"' && quote != '\'') {
        fail("an attribute without quotes");
      }
      ++at_;
      skip_past(std::string_view(&quote, 1));
    }
  }

  void entity(std::string& text) {
    const size_t end = xml_.substr(at_, 12).find(';');
    if (end == std::string_view::npos) {
      fail("an unfinished entity");
    }
    const std::string_view word = xml_.substr(at_ + 1, end - 1);
    if (word.starts_with('#')) {
      const bool is_hex = word.starts_with("#x");
      const std::string_view digits = word.substr(is_hex ? 2 : 1);
      uint32_t code = 0;
      const auto [stop, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), code, is_hex ? 16 : 10);
      const bool is_surrogate = code >= 0xd800 && code < 0xe000;
      if (error != std::errc() || stop != digits.data() + digits.size() || code == 0 ||
          code > 0x10ffff || is_surrogate) {
        fail("an entity that is no letter");
      }
      base::append_utf8(text, code);
    } else {
      static constexpr std::pair<std::string_view, char> kNamed[] = {
          {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
      const auto* found = std::find_if(std::begin(kNamed), std::end(kNamed),
                                       [&](const auto& entry) { return entry.first == word; });
      if (found == std::end(kNamed)) {
        fail("an unknown entity");
      }
      text.push_back(found->second);
    }
    at_ += end + 1;
  }

  XmlElement element(int depth) {
    if (depth > kMaxDepth) {
      fail("elements nested too deep");
    }
    expect('<');
    const std::string_view tag = name();
    XmlElement result;
    result.name = tag.substr(tag.find(':') == std::string_view::npos ? 0 : tag.find(':') + 1);
    if (skip_attributes()) {
      return result;
    }
    for (;;) {
      const size_t next = std::min(xml_.find_first_of("<&", at_), xml_.size());
      result.text += xml_.substr(at_, next - at_);
      at_ = next;
      if (at_ == xml_.size()) {
        fail("an element without its end");
      }
      if (xml_[at_] == '&') {
        entity(result.text);
      } else if (rest().starts_with("</")) {
        at_ += 2;
        if (name() != tag) {
          fail("the end of another element");
        }
        skip_space();
        expect('>');
        return result;
      } else {
        result.children.push_back(element(depth + 1));
      }
    }
  }

  std::string_view xml_;
  size_t at_ = 0;
};

}  // namespace

const XmlElement* XmlElement::child(std::string_view child_name) const {
  const auto found = std::find_if(children.begin(), children.end(), [&](const XmlElement& element) {
    return element.name == child_name;
  });
  return found == children.end() ? nullptr : &*found;
}

std::string XmlElement::text_of(std::string_view child_name) const {
  const XmlElement* found = child(child_name);
  return found == nullptr ? "" : found->text;
}

XmlElement parse_xml(std::string_view xml) {
  return Parser(xml).document();
}

}  // namespace lockstep::storage
