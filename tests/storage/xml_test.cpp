#include "storage/xml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Xml, IsReadAsS3WritesIt) {
  const storage::XmlElement root = storage::parse_xml(
      "\xef\xbb\xbf<?xml version=\"1.0\"?>\n<a:List xmlns:a='http://x/>'>\n <Key>a&amp;b&#x20AC;"
      "&#233;&#128512; </Key><Empty/><Empty x=\"1\" /><Key >second</Key >\n</a:List>\n");
  EXPECT_EQ(root.name, "List");
  EXPECT_EQ(root.children.size(), 4u);
  EXPECT_EQ(root.text_of("Key"), "a&b\xe2\x82\xac\xc3\xa9\xf0\x9f\x98\x80 ");
  EXPECT_EQ(root.text_of("Absent"), "");
  EXPECT_EQ(root.children[3].text, "second");
}

TEST(Xml, RefusesTheRest) {
  std::string deep;
  for (int i = 0; i < 100; ++i) {
    deep += "<a>";
  }
  for (const std::string& text : {std::string(),
                                  std::string("a"),
                                  std::string("<"),
                                  std::string("<a"),
                                  std::string("<a>"),
                                  std::string("<a></b>"),
                                  std::string("<a></a><b/>"),
                                  std::string("<a x></a>"),
                                  std::string("<a x=1></a>"),
                                  std::string("<a x='1></a>"),
                                  std::string("<a>&nbsp;</a>"),
                                  std::string("<a>&#0;</a>"),
                                  std::string("<a>&#xD800;</a>"),
                                  std::string("<a>&#x110000;</a>"),
                                  std::string("<a>&amp</a>"),
                                  std::string("<a><!-- --></a>"),
                                  std::string("<?xml"),
                                  std::string("<!DOCTYPE a><a/>"),
                                  std::string("<a><![CDATA[x]]></a>"),
                                  deep}) {
    EXPECT_THAT([&] { storage::parse_xml(text); },
                ThrowsMessage<FormatError>(HasSubstr("at offset")))
        << text;
  }
}

}  // namespace
}  // namespace lockstep
