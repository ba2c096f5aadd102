extern "C" int ftrun_engine_main(int, char**) { return 0; }
