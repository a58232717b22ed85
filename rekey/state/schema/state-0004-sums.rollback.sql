DROP TABLE partial_sums;
