#include "storage/curl_library.h"

#include <dlfcn.h>

#include <lockstep/base/error.h>

namespace lockstep::storage {

namespace {

constexpr const char* kName = "libcurl.so.4";

template <typename Function>
void look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    throw IoError("s3:// needs {}, and the one here has no {}", kName, name);
  }
}

CurlLibrary load() {
  void* library = ::dlopen(kName, RTLD_NOW | RTLD_LOCAL);  // never closed: it keeps state
  if (library == nullptr) {
    throw IoError("s3:// needs {}: {}; install what Debian calls libcurl4", kName, ::dlerror());
  }
  CurlLibrary curl;
  look_up(library, "curl_easy_init", curl.easy_init);
  look_up(library, "curl_easy_cleanup", curl.easy_cleanup);
  look_up(library, "curl_easy_reset", curl.easy_reset);
  look_up(library, "curl_easy_setopt", curl.easy_setopt);
  look_up(library, "curl_easy_perform", curl.easy_perform);
  look_up(library, "curl_easy_getinfo", curl.easy_getinfo);
  look_up(library, "curl_easy_strerror", curl.easy_strerror);
  look_up(library, "curl_slist_append", curl.slist_append);
  look_up(library, "curl_slist_free_all", curl.slist_free_all);
  decltype(&curl_global_init) global_init = nullptr;
  look_up(library, "curl_global_init", global_init);
  if (const CURLcode code = global_init(CURL_GLOBAL_DEFAULT); code != CURLE_OK) {
    throw IoError("libcurl cannot start: {}", curl.easy_strerror(code));
  }
  return curl;
}

}  // namespace

const CurlLibrary& curl() {
  static const CurlLibrary library = load();
  return library;
}

}  // namespace lockstep::storage
