"""Do the exponents at initialization predict the loss after training?"""
