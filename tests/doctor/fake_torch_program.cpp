// Plays lockstep-torch for gpu_probe_test: it links a library called libtorch_cpu.so.

int main() {
  return 0;
}
