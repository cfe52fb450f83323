#pragma once

// The XML that S3 answers with: elements and text. Attributes are skipped; DOCTYPE, comments, CDATA
// and processing instructions after the first line are refused, since no answer has them.

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::storage {

struct XmlElement {
  std::string name;  // without a namespace's prefix
  std::string text;  // of its own, entities resolved
  std::vector<XmlElement> children;

  const XmlElement* child(std::string_view child_name) const;  // the first, or nullptr
  std::string text_of(std::string_view child_name) const;      // empty if there is none
};

// Throws FormatError, with the offset, for anything that is not one whole element.
XmlElement parse_xml(std::string_view xml);

}  // namespace lockstep::storage
