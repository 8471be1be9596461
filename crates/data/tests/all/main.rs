//! The tests of the library as its users call it, in one program.

mod calibration;
