#include "tokenizers/text_normalizer.h"

#include <algorithm>

#include "base/text/utf8.h"

namespace lockstep::tokenizers {

namespace {

using Points = std::u32string;

// Sorts each run of marks by class; marks of one class keep their order.
void put_in_canonical_order(const Unicode& unicode, Points& points) {
  for (size_t begin = 0; begin < points.size(); ++begin) {
    size_t end = begin;
    while (end < points.size() && unicode.combining_class(points[end]) != 0) {
      ++end;
    }
    if (end - begin > 1) {
      std::stable_sort(points.begin() + static_cast<std::ptrdiff_t>(begin),
                       points.begin() + static_cast<std::ptrdiff_t>(end),
                       [&](char32_t a, char32_t b) {
                         return unicode.combining_class(a) < unicode.combining_class(b);
                       });
    }
    begin = end;
  }
}

Points decomposed(const Unicode& unicode, const Points& points) {
  Points parts;
  parts.reserve(points.size() + points.size() / 2);
  for (const char32_t point : points) {
    unicode.append_decomposed(parts, point);
  }
  put_in_canonical_order(unicode, parts);
  return parts;
}

// Unicode standard, section 3.11: each mark joins the last starter unless one between them blocks
// it.
Points composed(const Unicode& unicode, const Points& points) {
  const Points parts = decomposed(unicode, points);
  Points out;
  size_t starter = Points::npos;
  int last_class = -1;  // of what stands behind the starter; -1: nothing does
  for (const char32_t point : parts) {
    const int point_class = unicode.combining_class(point);
    if (starter != Points::npos && last_class < point_class) {
      if (const char32_t whole = unicode.composed(out[starter], point); whole != 0) {
        out[starter] = whole;
        continue;
      }
    }
    if (point_class == 0) {
      starter = out.size();
      last_class = -1;
    } else {
      last_class = point_class;
    }
    out += point;
  }
  return out;
}

Points without(const Unicode& unicode, Points points, uint8_t classes) {
  std::erase_if(points, [&](char32_t point) { return (unicode.classes(point) & classes) != 0; });
  return points;
}

Points cleaned(const Unicode& unicode, Points points) {
  points = without(unicode, std::move(points), kControl);
  for (char32_t& point : points) {
    if ((unicode.classes(point) & kSpace) != 0) {
      point = U' ';
    }
  }
  return points;
}

Points with_spaced_chinese(const Unicode& unicode, const Points& points) {
  Points out;
  for (const char32_t point : points) {
    if (unicode.is_chinese(point)) {
      out += U' ';
      out += point;
      out += U' ';
    } else {
      out += point;
    }
  }
  return out;
}

Points lowered(const Unicode& unicode, const Points& points) {
  Points out;
  out.reserve(points.size());
  for (const char32_t point : points) {
    unicode.append_lower(out, point);
  }
  return out;
}

Points after(TextNormalizer::Step step, Points points) {
  using Step = TextNormalizer::Step;
  const Unicode& unicode = Unicode::get();
  switch (step) {
    case Step::Clean:
      return cleaned(unicode, std::move(points));
    case Step::SpaceChinese:
      return with_spaced_chinese(unicode, points);
    case Step::StripAccents:
      return without(unicode, decomposed(unicode, points), kNonSpacing);
    case Step::StripMarks:
      return without(unicode, std::move(points), kMark);
    case Step::Lowercase:
      return lowered(unicode, points);
    case Step::Decompose:
      return decomposed(unicode, points);
    case Step::Compose:
      return composed(unicode, points);
  }
  return points;
}

}  // namespace

bool TextNormalizer::has(Step step) const {
  return std::find(steps_.begin(), steps_.end(), step) != steps_.end();
}

void TextNormalizer::apply(std::string_view text, std::string& out) const {
  // To such letters nothing but lower case can happen.
  if (std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; })) {
    out = text;
    if (has(Step::Lowercase)) {
      for (char& c : out) {
        c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
      }
    }
    return;
  }
  Points points;
  points.reserve(text.size());
  for (const char* at = text.data(); at != text.data() + text.size();) {
    points += base::next_code_point(at);
  }
  for (const Step step : steps_) {
    points = after(step, std::move(points));
  }
  out.clear();
  for (const char32_t point : points) {
    base::append_utf8(out, point);
  }
}

}  // namespace lockstep::tokenizers
