#include <cstdio>
int main() { std::puts("ftrun"); }
