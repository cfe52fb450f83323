// A shared library that is no plug-in of lockstep.

extern "C" int something_else() {
  return 1;
}
