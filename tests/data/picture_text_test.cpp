#include "data/picture_text.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

TEST(PictureText, AsciiIsDarkWhereThePictureIs) {
  at::Tensor picture = at::zeros({3, 4, 3});
  picture.select(2, 1).fill_(1);
  EXPECT_EQ(data::picture_text({picture, picture}, data::PictureStyle::Ascii),
            " @    @\n @    @\n");
}

TEST(PictureText, ColourNamesTheUpperAndTheLowerPixel) {
  at::Tensor picture = at::zeros({3, 2, 1});
  picture[0][0][0] = 1;  // red above
  picture[2][1][0] = 1;  // blue below
  EXPECT_EQ(data::picture_text({picture}, data::PictureStyle::Colour),
            "\x1b[38;2;255;0;0;48;2;0;0;255m\u2580\x1b[0m  \n");
}

TEST(PictureText, OfNoPicturesIsEmpty) {
  EXPECT_EQ(data::picture_text({}, data::PictureStyle::Ascii), "");
}

TEST(PictureText, RefusesOtherTensors) {
  EXPECT_THROW(data::picture_text({at::ones({1, 4, 4})}, data::PictureStyle::Ascii), UsageError);
  EXPECT_THROW(
      data::picture_text({at::ones({3, 4, 4}), at::ones({3, 4, 5})}, data::PictureStyle::Ascii),
      UsageError);
}

}  // namespace
}  // namespace lockstep
