//! Estimates of the Kullback-Leibler divergence.
